"""The report of a study, regenerated from its ledger and artifacts alone."""
