from kvserver.entry import main

main()
