"""How each kind of statement is carried out."""
