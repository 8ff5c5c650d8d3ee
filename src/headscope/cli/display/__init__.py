"""What commands print: tables, panels and messages of the terminal."""
