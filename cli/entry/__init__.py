"""The script that ``spark-submit`` runs."""
