"""Proposes recipes for a text, a time limit, or a run to fine-tune."""
