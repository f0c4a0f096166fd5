"""Teams of several policies that act as one."""
