from kvtools.cli import main

main()
