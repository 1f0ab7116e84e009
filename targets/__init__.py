"""Target families: each folder is one family (backend, engine, devices, runtimes)."""
