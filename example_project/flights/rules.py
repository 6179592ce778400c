"""Names and limits that the modules of flight operations share."""

TOPIC = "flights"
GROUPS = ("aircraft", "delays", "alerts")

LONG_DELAY_MINUTES = 120
"""A departure later than this is alerted."""

NO_TAIL_NUMBER = "no tail number"
NEVER_DEPARTED = "never departed"
