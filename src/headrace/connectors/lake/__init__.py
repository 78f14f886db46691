"""Tables of a data lake, Iceberg's and Delta's: an epoch is one commit of the table, which notes its number, too."""
