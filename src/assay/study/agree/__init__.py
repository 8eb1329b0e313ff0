"""What is agreed on before anything runs: approvals, protocol, scope, budget."""
