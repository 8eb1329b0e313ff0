"""The training server: live systems act locally and learn centrally."""
