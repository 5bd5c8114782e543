"""What the rooms below share (``specification``, ``randomnode``) is found from here."""
