"""What a machine's environment says, read without torch:

variables, versions, CANN's files. Checks are pure functions of these.
"""
