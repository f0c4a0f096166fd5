"""Metrics, their glossary, health, and the display."""
