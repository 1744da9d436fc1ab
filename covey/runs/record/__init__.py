"""The record of a run on the disk: its files, who writes them and who reads them."""
