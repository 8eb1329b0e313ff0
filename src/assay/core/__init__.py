"""Types, configuration models, registry, seeding and errors that every layer shares."""
