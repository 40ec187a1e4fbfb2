"""The conformance cases, a class for each capability."""
