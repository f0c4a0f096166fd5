"""The parts that methods are composed of, by kind."""
