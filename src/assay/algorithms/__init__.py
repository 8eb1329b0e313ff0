"""One flat file per algorithm. `assay.core.registry.get(name)` finds them."""
