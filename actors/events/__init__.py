"""What can be watched: the frames of runs, the reducer that folds them, message parts, and the channels of observers."""
