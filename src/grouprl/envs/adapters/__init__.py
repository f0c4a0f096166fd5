"""Environments of other libraries, behind the protocol of this one."""
