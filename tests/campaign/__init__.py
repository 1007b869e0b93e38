"""The campaign: kills, failing writes, damaged input and a long run (docs/reliability.md)."""
