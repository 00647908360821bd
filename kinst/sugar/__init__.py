"""Rank 2: typed tree to typed tree; inline expansion will live here."""
