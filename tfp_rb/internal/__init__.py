"""Tools without a name in the mathematics: checks, configs, random bits."""
