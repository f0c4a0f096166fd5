"""What a run trains and samples: its policy, its reward, and the source of each step's samples."""
