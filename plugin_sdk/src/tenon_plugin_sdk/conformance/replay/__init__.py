"""Replaying recorded op cases: real inputs and real weights of a model's run, on the platform under test.

tenon ops record MODEL -o FILE
pytest --pyargs tenon_plugin_sdk.conformance.replay --platform NAME --replay FILE
"""
