"""The target of the machine inside `on_machine`. It imports nothing, so that `tiles` may ask."""

from __future__ import annotations

target: str | None = None  # "sm_80", ...
