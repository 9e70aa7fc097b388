from __future__ import annotations

import os

# Read by the C library at its first look-up: a TCPStore asks DNS for names at every connect.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
