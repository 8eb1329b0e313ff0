"""Steps and settings that several algorithms share; an algorithm never imports another."""
