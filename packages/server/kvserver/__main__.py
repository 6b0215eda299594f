from kvserver.main import main

main()
