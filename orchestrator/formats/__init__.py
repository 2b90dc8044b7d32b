"""Files of other benchmarks and engines. `import_config` chooses their reader by name; a `Remainder` names what is not taken."""
