"""Does every weight land, whatever loads it?"""
