"""Plain frozen data, errors for users, and the protocols between the layers. Rank 0 of the import
order (docs/architecture.md): imports no other package of kinst."""
