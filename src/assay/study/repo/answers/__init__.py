"""The questions that an audit answers, one module each."""
