"""The state that a log describes, as pure folds, its snapshots and stored form."""
