"""Rank 2: pure planning: sites and code in, writes out.  Nothing here touches a target."""
