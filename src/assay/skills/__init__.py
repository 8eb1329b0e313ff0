"""Skills for coding agents: the library, its checks, and the installer. Standard library only."""
