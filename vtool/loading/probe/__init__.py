"""The probe: loads a class's weights in every way that can go wrong, where the class is installed.

The folder is run by its path (`python probe request.json`): nothing of vtool need be installed
there, and nothing of it is imported. It needs torch, and the framework that the subjects come from.
"""
