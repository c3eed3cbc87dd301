"""Memory that can carry derivatives: storages and their regions, extents, layouts, blocks; values that will be needed."""
