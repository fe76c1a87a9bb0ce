"""The controller of trainswitch: runs beside Alertmanager and turns an alert into one intervention."""
