"""Child processes: started bare, limited, spoken to in frames, and ended with their parent, whatever they run."""
