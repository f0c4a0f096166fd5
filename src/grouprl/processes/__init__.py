"""Child processes: started with a bare interpreter, limited, sent framed messages, and ended with their parent."""
