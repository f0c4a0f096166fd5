"""Reading and comparing mathematical answers."""
