"""Proofs without training."""
