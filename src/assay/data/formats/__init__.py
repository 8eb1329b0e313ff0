"""The file formats of datasets, by what their names end with."""
