"""Figures as people read them: bytes, milliseconds, counts. Runs under Python 3.6."""

__all__ = ["format_bytes", "format_count", "format_ms"]


def format_bytes(count: float) -> str:
    """Return a size in bytes as text with a binary unit.

    >>> format_bytes(512), format_bytes(1536), format_bytes(18695006)
    ('512 B', '1.5 KiB', '17.8 MiB')
    """
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return "{:.0f} {}".format(value, unit) if unit == "B" else "{:.1f} {}".format(value, unit)
        value /= 1024
    raise AssertionError("unreachable")


def format_count(count: float) -> str:
    """Return a plain count (operations, parameters) as text with an SI letter.

    >>> format_count(950), format_count(407_000_000), format_count(4_652_008)
    ('950', '407 M', '4.65 M')
    """
    value = float(count)
    for letter in ("", " k", " M", " G", " T"):
        if abs(value) < 1000 or letter == " T":
            return "{:.3g}{}".format(value, letter)
        value /= 1000
    raise AssertionError("unreachable")


def format_ms(milliseconds: float) -> str:
    """Return a time in milliseconds as text.

    >>> format_ms(17.512), format_ms(0.0123), format_ms(2500)
    ('17.51 ms', '12.3 us', '2.50 s')
    """
    if milliseconds >= 1000:
        return "{:.2f} s".format(milliseconds / 1000)
    if milliseconds >= 0.1:
        return "{:.2f} ms".format(milliseconds)
    return "{:.1f} us".format(milliseconds * 1000)
