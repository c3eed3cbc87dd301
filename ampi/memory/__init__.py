"""Memory that can carry derivatives: storages, regions, extents, layouts, blocks, and values that will be needed."""
