"""The command `eagc`, and what its commands share: console, files, locks, places, tables, interrupts."""
