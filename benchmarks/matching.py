"""How long the matcher takes on large graphs, and which rules fire where (CPU seconds of this process).

python -m benchmarks.matching [--json matching.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.architectures import ARCHITECTURES, bert, resnet
from edgefuse.fusion import find_matches, load_rules
from edgefuse.graph import Model, read_model
from edgefuse.passes import canonicalize
from edgefuse.report import print_table

REPEATS = 5


def measured(name: str, model: Model) -> dict[str, Any]:
    """Return the least CPU time of `REPEATS` runs, what was found, and the rules that fired."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        found = find_matches(model)
        seconds.append(time.process_time() - start)
    fired = Counter(match.rule.id for match in found.matches)
    return {
        "graph": name,
        "nodes": len(list(model.graph)),
        "rules": len(load_rules()),
        "cpu_s": round(min(seconds), 4),
        "steps": found.steps,
        "matches": len(found.matches),
        "refused": len(found.refused),
        "fired": dict(sorted(fired.items())),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", type=Path)
    options = parser.parse_args()
    graphs = {name: make() for name, make in ARCHITECTURES.items()}
    graphs["resnet, 1761 nodes"] = resnet((50, 60, 90, 50))
    graphs["bert, 1741 nodes"] = bert(60)
    for path in sorted(options.models.glob("*.onnx")) if options.models is not None else []:
        graphs[f"{path.stem}, exported"] = read_model(path)
        graphs[path.stem] = read_model(path)
        canonicalize(graphs[path.stem])
    rows = [measured(name, model) for name, model in graphs.items()]
    keys = ("graph", "nodes", "rules", "cpu_s", "steps", "matches", "refused")
    print_table(list(keys), [[str(row[key]) for key in keys] for row in rows])
    fired = {rule for row in rows for rule in row["fired"]}
    print("never:", ", ".join(rule.id for rule in load_rules() if rule.id not in fired))
    print(f"{len(fired)} of {len(load_rules())} rules fire on these graphs")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
