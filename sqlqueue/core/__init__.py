"""Pure decisions and values: no database, no Django, no clock of its own. Every package may import it; it imports only
`exceptions`.
"""
